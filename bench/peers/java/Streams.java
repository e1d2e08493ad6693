import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.atomic.LongAdder;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;

/** Kafka Streams with exactly_once_v2 and one thread; nothing tuned but the transaction's length. */
final class Streams {
    private static final Duration CLOSING = Duration.ofSeconds(60);

    private Streams() {}

    public static void main(String[] words) throws Exception {
        Contender contender = new Contender(words);
        long records = contender.ends().values().stream().mapToLong(Long::longValue).sum();

        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, contender.group);
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, contender.bootstrap);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, contender.transactionMs);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 1);

        LongAdder seen = new LongAdder();
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(contender.input, Consumed.with(Serdes.ByteArray(), Serdes.ByteArray()))
            .mapValues(value -> {
                seen.increment();
                return value;
            })
            .to(contender.output, Produced.with(Serdes.ByteArray(), Serdes.ByteArray()));

        AtomicReference<Throwable> failure = new AtomicReference<>();
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setUncaughtExceptionHandler(error -> {
            failure.set(error);
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.start();
        while (seen.sum() < records && failure.get() == null) {
            Thread.sleep(5);
        }
        contender.commits = Math.round(metric(streams, "stream-thread-metrics", "commit-total"));
        contender.commitSeconds = metric(streams, "producer-metrics", "txn-commit-time-ns-total") / 1e9;
        boolean closed = streams.close(CLOSING); // commits what is open
        if (failure.get() != null) {
            throw new IllegalStateException("a stream thread has ended", failure.get());
        }
        if (!closed) {
            throw new IllegalStateException("not closed within " + CLOSING);
        }
        contender.report();
    }

    private static double metric(KafkaStreams streams, String group, String name) {
        return streams.metrics().entrySet().stream()
            .filter(one -> one.getKey().group().equals(group) && one.getKey().name().equals(name))
            .mapToDouble(one -> ((Number) one.getValue().metricValue()).doubleValue())
            .sum();
    }
}
