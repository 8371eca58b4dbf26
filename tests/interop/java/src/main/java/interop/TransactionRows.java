package interop;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages that are seen when a local transaction has succeeded. */
final class TransactionRows {
    private TransactionRows() {
    }

    static void register(Map<String, Rows.Story> stories) {
        stories.put("transaction", TransactionRows::outcomes);
        stories.put("transaction-orphan", TransactionRows::orphans);
    }

    /** Ends as told: at once by the argument, when asked by how often it was asked about this message. */
    private static final class Local implements TransactionListener {
        private final Row row;
        private final String name;
        private final int commitAt;
        private final Map<Integer, AtomicInteger> asked = new ConcurrentHashMap<>();

        Local(Row row, String name, int commitAt) {
            this.row = row;
            this.name = name;
            this.commitAt = commitAt;
        }

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            row.write("executed", "producer", name, "index",
                Integer.parseInt(message.getUserProperty(Content.INDEX)),
                "hasId", message.getTransactionId() != null);
            return (LocalTransactionState) argument;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            int index = Integer.parseInt(message.getUserProperty(Content.INDEX));
            int times = asked.computeIfAbsent(index, key -> new AtomicInteger()).incrementAndGet();
            row.write("checked", "producer", name, "index", index, "times", times, "topic", message.getTopic(),
                "sha1", Content.sha1(message.getBody()));
            return times >= commitAt ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.UNKNOW;
        }
    }

    private static TransactionMQProducer producer(Row row, String name, TransactionListener listener) throws Exception {
        TransactionMQProducer producer = row.named(new TransactionMQProducer(row.group("producers")), name);
        producer.setTransactionListener(listener);
        producer.setSendMsgTimeout(10_000);
        producer.setHeartbeatBrokerInterval(1000);
        producer.start();
        return producer;
    }

    private static void send(Row row, TransactionMQProducer producer, int index, LocalTransactionState state)
        throws Exception {
        TransactionSendResult result =
            producer.sendMessageInTransaction(Content.message(row.topic(), index), state);
        row.sent(index, result);
        row.write("state", "index", index, "state", result.getLocalTransactionState().name());
    }

    private static void outcomes(Row row) throws Exception {
        row.createTopic(row.topic(), 4);
        Tally tally = new Tally(row.count - (row.count + 1) / 3);
        Member member = new Member(row, row.group(), "consumer").subscribe(row.topic(), "*").concurrently(tally);
        member.start();
        member.untilHolding(4);
        TransactionMQProducer producer = producer(row, "producer", new Local(row, "producer", 2));
        row.closing(producer::shutdown);
        LocalTransactionState[] states = {LocalTransactionState.COMMIT_MESSAGE,
            LocalTransactionState.ROLLBACK_MESSAGE, LocalTransactionState.UNKNOW};
        for (int index = 0; index < row.count; index++) {
            send(row, producer, index, states[index % 3]);
        }
        tally.await();
        member.untilCommitted(row.topic());
    }

    /** Who sent the halves goes; another of its group is asked. */
    private static void orphans(Row row) throws Exception {
        row.createTopic(row.topic(), 4);
        Tally tally = new Tally(row.count);
        Member member = new Member(row, row.group(), "consumer").subscribe(row.topic(), "*").concurrently(tally);
        member.start();
        member.untilHolding(4);
        TransactionMQProducer living = producer(row, "living", new Local(row, "living", 1));
        row.closing(living::shutdown);
        // A client greets the brokers of topics it has sent to, and only those can ask it.
        living.sendMessageInTransaction(Content.message(row.topic(), row.count), LocalTransactionState.ROLLBACK_MESSAGE);
        TransactionMQProducer dying = producer(row, "dying", new Local(row, "dying", 99));
        for (int index = 0; index < row.count; index++) {
            send(row, dying, index, LocalTransactionState.UNKNOW);
        }
        dying.shutdown();
        tally.await();
        member.untilCommitted(row.topic());
    }
}
