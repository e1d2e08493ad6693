"""The door to confluent-kafka: thin clients whose errors are classified; nothing else imports that package."""
