// A worker of the same job in Java, under our transactional.id: it commits some records with our group's offsets, then
// leaves a transaction open until it is fenced. Arguments: servers, transactional.id, group, source, out, audit, records.

import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class StrangeWorker {
    public static void main(String[] given) throws Exception {
        Map<String, Object> reading = Map.of(
            "bootstrap.servers", given[0], "group.id", given[2], "enable.auto.commit", false,
            "isolation.level", "read_committed", "auto.offset.reset", "none");
        Map<String, Object> writing = Map.of(
            "bootstrap.servers", given[0], "transactional.id", given[1], "transaction.timeout.ms", 600000);
        TopicPartition here = new TopicPartition(given[3], 0);
        try (KafkaProducer<String, String> producer =
                 new KafkaProducer<>(writing, new StringSerializer(), new StringSerializer());
             KafkaConsumer<String, String> consumer =
                 new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer())) {
            producer.initTransactions();
            consumer.assign(List.of(here));
            int left = Integer.parseInt(given[6]);
            long behind = consumer.position(here);
            producer.beginTransaction();
            while (left > 0) {
                for (ConsumerRecord<String, String> one : consumer.poll(Duration.ofMillis(500))) {
                    if (left-- > 0) {
                        producer.send(new ProducerRecord<>(given[4], one.key(), "out " + one.value()));
                        producer.send(new ProducerRecord<>(given[5], null, "audit " + one.value()));
                        behind = one.offset() + 1;
                    }
                }
            }
            producer.sendOffsetsToTransaction(
                Map.of(here, new OffsetAndMetadata(behind)), new ConsumerGroupMetadata(given[2]));
            producer.commitTransaction();
            producer.beginTransaction();
            while (true) {
                producer.send(new ProducerRecord<>(given[4], null, "left open")).get();
                Thread.sleep(100);
            }
        }
    }
}
