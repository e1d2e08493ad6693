"""What a consumer group has stored, and who may own it. This room only reads."""
