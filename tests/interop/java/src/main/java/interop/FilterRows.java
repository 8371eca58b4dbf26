package interop;

import java.util.Map;
import java.util.function.IntPredicate;
import java.util.stream.IntStream;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

/** What a tag or a condition lets through. {@code Aa} and {@code BB} have one hash, which is all the broker compares. */
final class FilterRows {
    static final String[] TAGS = {"Aa", "BB", "TagA", "TagB", null};
    private static final String[] SHOPS = {"x", "it's", null};

    private FilterRows() {
    }

    static void register(Map<String, Rows.Story> stories) {
        stories.put("tag-filter", FilterRows::tags);
        stories.put("tag-collision", FilterRows::collision);
        stories.put("sql-filter", FilterRows::conditions);
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

    /** Six values of a number and three of a text, the last of which is none. */
    private static void conditions(Row row) throws Exception {
        row.createTopic(row.topic(), 4);
        DefaultMQProducer producer = row.producer();
        for (int index = 0; index < row.count; index++) {
            Message message = Content.message(row.topic(), index);
            message.putUserProperty("a", Integer.toString(index % 6));
            if (SHOPS[index % SHOPS.length] != null) {
                message.putUserProperty("shop", SHOPS[index % SHOPS.length]);
            }
            row.sent(index, producer.send(message));
        }
        Tally one = selected(row, "one", "a between 0 and 3", index -> index % 6 <= 3);
        Tally two = selected(row, "two", "shop IS NULL OR shop = 'it''s' AND a > 3.5",
            index -> index % 3 == 2 || index % 3 == 1 && index % 6 > 3);
        one.await();
        two.await();
    }

    private static Tally selected(Row row, String name, String condition, IntPredicate passes) throws Exception {
        Tally tally = new Tally((int) IntStream.range(0, row.count).filter(passes).count());
        new Member(row, row.group(name), name).subscribe(row.topic(), MessageSelector.bySql(condition))
            .concurrently(tally).start();
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
