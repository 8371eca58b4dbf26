package interop;

import java.util.Map;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

/** What a tag lets through. {@code Aa} and {@code BB} have one hash, which is all the broker compares. */
final class FilterRows {
    static final String[] TAGS = {"Aa", "BB", "TagA", "TagB", null};

    private FilterRows() {
    }

    static void register(Map<String, Rows.Story> stories) {
        stories.put("tag-filter", FilterRows::tags);
        stories.put("tag-collision", FilterRows::collision);
    }

    private static Message tagged(Row row, int index, String tag) {
        Message message = Content.message(row.topic(), index);
        if (tag == null) {
            message.getProperties().remove("TAGS");
        } else {
            message.setTags(tag);
        }
        return message;
    }

    private static void tags(Row row) throws Exception {
        row.createTopic(row.topic(), 4);
        DefaultMQProducer producer = row.producer();
        for (int index = 0; index < row.count; index++) {
            row.sent(index, producer.send(tagged(row, index, TAGS[index % TAGS.length])));
        }
        int share = row.count / TAGS.length;
        // What comes behind the last match is passed when a held pull ends; no need to wait for that.
        Tally one = filtered(row, "one", "Aa", share);
        Tally two = filtered(row, "two", "BB || TagA", 2 * share);
        one.await();
        two.await();
    }

    private static Tally filtered(Row row, String name, String expression, int expected) throws Exception {
        Tally tally = new Tally(expected);
        new Member(row, row.group(name), name).subscribe(row.topic(), expression).concurrently(tally).start();
        return tally;
    }

    /** A queue full of the other tag, and behind all of it the one that was asked for. */
    private static void collision(Row row) throws Exception {
        row.createTopic(row.topic(), 1);
        DefaultMQProducer producer = row.producer();
        for (int index = 0; index < row.count; index++) {
            row.sent(index, producer.send(tagged(row, index, index == row.count - 1 ? "Aa" : "BB")));
        }
        Member member = new Member(row, row.group(), "consumer", new Capture(row, "consumer", true, false),
            new org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely());
        Tally tally = new Tally(1);
        member.subscribe(row.topic(), "Aa").concurrently(tally);
        member.start();
        tally.await();
        member.untilCommitted(row.topic());
    }
}
