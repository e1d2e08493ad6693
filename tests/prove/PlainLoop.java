// The textbook's loop in Java: a batch, a transaction of its outputs and offsets, a new process after a fatal error. Its options are
// the client's defaults. Arguments: source, sink.

import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class PlainLoop {
    public static void main(String[] given) {
        String servers = System.getenv("EOS_KAFKA__BOOTSTRAP_SERVERS");
        Map<String, Object> reading = Map.of(
            "bootstrap.servers", servers, "group.id", System.getenv("EOS_GROUP"), "enable.auto.commit", false,
            "isolation.level", "read_committed", "auto.offset.reset", "earliest", "max.poll.records", 100,
            "session.timeout.ms", 6000);
        Map<String, Object> writing = Map.of(
            "bootstrap.servers", servers, "transactional.id", "java-" + System.getenv("EOS_ORDINAL"));
        try (KafkaProducer<byte[], byte[]> producer =
                 new KafkaProducer<>(writing, new ByteArraySerializer(), new ByteArraySerializer());
             KafkaConsumer<byte[], byte[]> consumer =
                 new KafkaConsumer<>(reading, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            producer.initTransactions();
            consumer.subscribe(List.of(given[0]));
            while (true) {
                ConsumerRecords<byte[], byte[]> batch = consumer.poll(Duration.ofMillis(200));
                if (batch.isEmpty()) {
                    continue;
                }
                try {
                    Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
                    producer.beginTransaction();
                    for (ConsumerRecord<byte[], byte[]> one : batch) {
                        producer.send(new ProducerRecord<>(given[1], one.key(), one.value()));
                        ends.put(new TopicPartition(one.topic(), one.partition()), new OffsetAndMetadata(one.offset() + 1));
                    }
                    producer.sendOffsetsToTransaction(ends, consumer.groupMetadata());
                    producer.commitTransaction();
                } catch (KafkaException error) {
                    System.err.println("giving up: " + error);
                    System.exit(1); // the next process begins at the committed offsets; its init ends what is open
                }
            }
        }
    }
}
