package interop;

import java.util.Map;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

/** A consumer that names a class to filter by; every third message is for it. */
final class FilterServerRows {
    private FilterServerRows() {
    }

    static void register(Map<String, Rows.Story> stories) {
        stories.put("filter-server/java", FilterServerRows::filtered);
    }

    @SuppressWarnings("deprecation")
    private static void filtered(Row row) throws Exception {
        DefaultMQProducer producer = row.producer();
        for (int index = 0; index < row.count; index++) {
            Message message = Content.message(row.topic(), index);
            message.putUserProperty("colour", index % 3 == 0 ? "red" : "green");
            row.sent(index, producer.send(message));
        }
        Tally tally = new Tally((row.count + 2) / 3);
        Member member = new Member(row, row.group(), "consumer");
        member.subscribe(row.topic(), "*");
        member.consumer.subscribe(row.topic(), "red", "throw new Error(\"not Java's to run\");");
        member.concurrently(tally);
        member.start();
        tally.await();
        member.untilCommitted(row.topic());
        row.write("over");
        Thread.sleep(Long.MAX_VALUE);
    }
}
