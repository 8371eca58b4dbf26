package interop;

import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Messages looked for: at their place in the log, by the id of their producer, by a key within a span of time. */
final class QueryRows {
    private static final int QUEUES = 4;
    /** The last of its answer, one with a compressed body, the last of all and one without keys. */
    private static final int[] VIEWED = {0, 50, 998, 999};
    private static final String ONE = "key-55";
    /** Of nine messages, three in each part. */
    private static final String MANY = "键-42";
    private static final int[] ELSEWHERE = {42, 55, 236};
    private static final int MANY_MAX = 64;
    private static final String FAR_BEHIND = "00000FFFFFFFFFFF";
    /** ResponseCode.NO_MESSAGE, which moved between the versions. */
    private static final int NO_MESSAGE = 208;

    private QueryRows() {
    }

    static void register(Map<String, Rows.Story> stories) {
        stories.put("query", QueryRows::query);
    }

    private static void query(Row row) throws Exception {
        row.createTopic(row.topic(), QUEUES);
        row.createTopic(row.topic("other"), 1);
        DefaultMQProducer producer = row.producer();
        SendResult[] sent = new SendResult[row.count];
        send(row, producer, sent, 0, 400);
        long first = between();
        for (int index : ELSEWHERE) {
            producer.send(Content.message(row.topic("other"), index));
        }
        send(row, producer, sent, 400, 700);
        long second = between();
        send(row, producer, sent, 700, row.count);
        DefaultMQAdminExt admin = row.admin();
        row.closing(admin::shutdown);
        // What was stored last is the last to come into the index.
        String last = sent[row.count - 1].getMsgId();
        row.until("the last message in the index", () -> admin.viewMessage(row.topic(), last) != null);
        for (int index : VIEWED) {
            String place = sent[index].getOffsetMsgId();
            look(row, "place-" + index, () -> List.of(admin.viewMessage(row.topic(), place)));
            String id = sent[index].getMsgId();
            look(row, "id-" + index, () -> List.of(admin.viewMessage(row.topic(), id)));
        }
        String place = sent[0].getOffsetMsgId();
        String nowhere = place.substring(0, place.length() - FAR_BEHIND.length()) + FAR_BEHIND;
        look(row, "no-place", () -> List.of(admin.viewMessage(row.topic(), nowhere)));
        byKey(row, admin, "key", ONE, MANY_MAX, 0, Long.MAX_VALUE);
        byKey(row, admin, "no-key", "nobody's", MANY_MAX, 0, Long.MAX_VALUE);
        byKey(row, admin, "all", MANY, MANY_MAX, 0, Long.MAX_VALUE);
        byKey(row, admin, "to-first", MANY, MANY_MAX, 0, first);
        byKey(row, admin, "first-to-second", MANY, MANY_MAX, first, second);
        byKey(row, admin, "from-second", MANY, MANY_MAX, second, Long.MAX_VALUE);
        byKey(row, admin, "before", MANY, MANY_MAX, 0, 1);
        byKey(row, admin, "newest", MANY, 4, 0, Long.MAX_VALUE);
        byKey(row, admin, "newest-to-second", MANY, 2, 0, second);
    }

    private static void send(Row row, DefaultMQProducer producer, SendResult[] sent, int from, int to)
        throws Exception {
        List<MessageQueue> queues = Row.ordered(producer.fetchPublishMessageQueues(row.topic()));
        for (int index = from; index < to; index++) {
            MessageQueue queue = queues.get(index % QUEUES);
            sent[index] = producer.send(Content.message(row.topic(), index), queue);
            row.sent(index, sent[index]);
        }
    }

    /** A moment more than a second away from all that was stored: an index knows times to the second. */
    private static long between() throws InterruptedException {
        Thread.sleep(1100);
        long moment = System.currentTimeMillis();
        Thread.sleep(1100);
        return moment;
    }

    private static void byKey(Row row, DefaultMQAdminExt admin, String name, String key, int max, long begin, long end)
        throws Exception {
        look(row, name, () -> admin.queryMessage(row.topic(), key, max, begin, end).getMessageList());
    }

    private static void look(Row row, String name, Callable<List<MessageExt>> question) throws Exception {
        List<MessageExt> found;
        try {
            found = question.call();
        } catch (MQClientException nothing) {
            if (nothing.getResponseCode() != NO_MESSAGE) {
                throw nothing;
            }
            found = List.of();
        }
        row.write("found", "by", name, "count", found.size());
        for (MessageExt message : found) {
            row.message(name, message);
        }
    }
}
