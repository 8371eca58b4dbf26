package interop;

import java.lang.reflect.InvocationTargetException;
import java.util.Map;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;

/**
 * Messages with a time of their own. The client of version 4 has no methods for them, but lets the properties be
 * set; what version 5 has is called by name, for the source is one.
 */
final class TimerRows {
    /** How long messages are to wait, in turn. */
    static final int[] DELAYS_MS = {700, 1500, 3250};
    static final int RECALLED_MS = 6000;
    static final int LAST_MS = 10_000;

    private TimerRows() {
    }

    static void register(Map<String, Rows.Story> stories) {
        stories.put("timer", TimerRows::timer);
        stories.put("recall", TimerRows::recall);
    }

    /** By a delay and by a time of day, in turn. */
    private static void timer(Row row) throws Exception {
        row.createTopic(row.topic(), 4);
        Tally tally = new Tally(row.count);
        Member member = new Member(row, row.group(), "consumer").subscribe(row.topic(), "*").concurrently(tally);
        member.start();
        member.untilHolding(4);
        DefaultMQProducer producer = row.producer();
        for (int index = 0; index < row.count; index++) {
            Message message = Content.message(row.topic(), index);
            int delay = DELAYS_MS[index % DELAYS_MS.length];
            if (index % 2 == 0) {
                time(message, "setDelayTimeMs", "TIMER_DELAY_MS", delay);
            } else {
                time(message, "setDeliverTimeMs", "TIMER_DELIVER_MS", System.currentTimeMillis() + delay);
            }
            row.sent(index, producer.send(message));
        }
        tally.await();
        member.untilCommitted(row.topic());
    }

    /** Every second message is taken back; one comes after all of them. */
    private static void recall(Row row) throws Exception {
        row.createTopic(row.topic(), 1);
        Tally tally = new Tally(row.count / 2 + 1);
        Member member = new Member(row, row.group(), "consumer").subscribe(row.topic(), "*").concurrently(tally);
        member.start();
        member.untilHolding(1);
        DefaultMQProducer producer = row.producer();
        for (int index = 0; index < row.count; index++) {
            Message message = Content.message(row.topic(), index);
            time(message, "setDelayTimeMs", "TIMER_DELAY_MS", RECALLED_MS);
            SendResult result = producer.send(message);
            row.sent(index, result);
            if (index % 2 == 0) {
                Object handle = result.getClass().getMethod("getRecallHandle").invoke(result);
                Object id = producer.getClass().getMethod("recallMessage", String.class, String.class)
                    .invoke(producer, row.topic(), handle);
                row.write("recalled", "index", index, "msgId", id);
            }
        }
        Message last = Content.message(row.topic(), row.count);
        time(last, "setDelayTimeMs", "TIMER_DELAY_MS", LAST_MS);
        row.sent(row.count, producer.send(last));
        tally.await();
        member.untilCommitted(row.topic());
    }

    private static void time(Message message, String method, String property, long ms) throws Exception {
        try {
            Message.class.getMethod(method, long.class).invoke(message, ms);
        } catch (NoSuchMethodException old) {
            MessageAccessor.putProperty(message, property, Long.toString(ms));
        } catch (InvocationTargetException failed) {
            throw new IllegalStateException(failed.getCause());
        }
    }
}
