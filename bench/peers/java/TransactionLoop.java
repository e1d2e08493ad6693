import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The raw loop with the Java client: poll, send per record, commit when the interval has passed, and no error handling.
 *
 * <p>-Dtuned=true takes settings for throughput; without it they are the client's own.
 */
final class TransactionLoop {
    private TransactionLoop() {}

    public static void main(String[] words) {
        Contender contender = new Contender(words);
        boolean tuned = Boolean.getBoolean("tuned");
        long remaining = contender.ends().values().stream().mapToLong(Long::longValue).sum();
        long interval = contender.transactionMs * 1_000_000L;
        try (
            KafkaConsumer<byte[], byte[]> consumer = consumer(contender, tuned);
            KafkaProducer<byte[], byte[]> producer = producer(contender, tuned)
        ) {
            producer.initTransactions();
            consumer.subscribe(List.of(contender.input));
            Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
            long began = System.nanoTime();
            while (remaining > 0) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(contender.transactionMs));
                if (!records.isEmpty() && next.isEmpty()) {
                    producer.beginTransaction();
                }
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    producer.send(new ProducerRecord<>(contender.output, record.key(), record.value()));
                }
                next.putAll(records.nextOffsets());
                remaining -= records.count();
                if (System.nanoTime() - began >= interval || remaining <= 0) {
                    if (!next.isEmpty()) {
                        long committing = System.nanoTime();
                        producer.sendOffsetsToTransaction(next, consumer.groupMetadata());
                        producer.commitTransaction();
                        contender.commitSeconds += (System.nanoTime() - committing) / 1e9;
                        contender.commits++;
                        next.clear();
                    }
                    began = System.nanoTime();
                }
            }
        }
        contender.report();
    }

    private static KafkaConsumer<byte[], byte[]> consumer(Contender contender, boolean tuned) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", contender.bootstrap);
        settings.put("group.id", contender.group);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("isolation.level", "read_committed");
        if (tuned) {
            settings.put("max.poll.records", "10000");
        }
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static KafkaProducer<byte[], byte[]> producer(Contender contender, boolean tuned) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", contender.bootstrap);
        settings.put("transactional.id", contender.group);
        if (tuned) {
            settings.put("batch.size", "1000000"); // librdkafka's default
            settings.put("buffer.memory", "268435456");
        }
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }
}
