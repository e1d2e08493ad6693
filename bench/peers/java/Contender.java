import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** What a contender is told, and the report at its end: bench/contender.py for programs in Java. */
final class Contender {
    final String bootstrap;
    final String input;
    final String output;
    final String group;
    final int transactionMs;

    long commits;
    double commitSeconds;

    private final long began = System.nanoTime();
    private final double startupCpuSeconds = cpuSeconds();

    /** Make it first of all: what the virtual machine has used until then is its start. */
    Contender(String[] words) {
        Map<String, String> given = new HashMap<>();
        for (int i = 0; i + 1 < words.length; i += 2) {
            given.put(words[i], words[i + 1]); // --until-caught-up, the last one, has no value: there is no other way here
        }
        bootstrap = given.get("--bootstrap");
        input = given.get("--input");
        output = given.get("--output");
        group = given.get("--group");
        transactionMs = Integer.parseInt(given.get("--transaction-ms"));
    }

    /** The input's partitions with their present ends; its offsets begin at 0 and have no gaps. */
    Map<TopicPartition, Long> ends() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, bytes, bytes)) {
            List<TopicPartition> partitions = consumer.partitionsFor(input).stream()
                .map(found -> new TopicPartition(input, found.partition()))
                .toList();
            return consumer.endOffsets(partitions);
        }
    }

    /** The one line that the harness waits for. It finds out the resident size by itself. */
    void report() {
        System.out.printf(
            Locale.ROOT,
            "{\"seconds\": %f, \"startup_cpu_seconds\": %f, \"peak_rss_bytes\": 0, \"commits\": %d, \"commit_seconds\": %f}%n",
            (System.nanoTime() - began) / 1e9, startupCpuSeconds, commits, commitSeconds);
    }

    private static double cpuSeconds() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime() / 1e9;
    }
}
