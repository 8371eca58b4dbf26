package interop;

import java.util.Map;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Requests and replies: a consumer answers each message with its body, turned round. */
final class RequestRows {
    static final int TIMEOUT_MS = 60_000;
    /** Java looks for requests whose time is up once a second. */
    static final int UNHEARD_MS = 2_000;

    private RequestRows() {
    }

    static void register(Map<String, Rows.Story> stories) {
        stories.put("request-reply", RequestRows::both);
        stories.put("request-java/java", RequestRows::ask);
        stories.put("reply-java/java", RequestRows::replyForEver);
    }

    private static void both(Row row) throws Exception {
        row.createTopic(row.topic(), 4);
        row.createTopic(row.topic("unheard"), 1);
        replier(row);
        ask(row);
    }

    private static void replyForEver(Row row) throws Exception {
        replier(row);
        Thread.sleep(Long.MAX_VALUE);
    }

    private static void replier(Row row) throws Exception {
        DefaultMQProducer producer = row.producer("replier", null);
        Member member = new Member(row, row.group(), "consumer").subscribe(row.topic(), "*");
        member.concurrently(new Tally(Integer.MAX_VALUE), message -> {
            producer.send(MessageUtil.createReplyMessage(message, turned(message.getBody())));
            return true;
        });
        member.start();
    }

    private static byte[] turned(byte[] body) {
        byte[] turned = new byte[body.length];
        for (int at = 0; at < body.length; at++) {
            turned[at] = body[body.length - 1 - at];
        }
        return turned;
    }

    private static void ask(Row row) throws Exception {
        DefaultMQProducer producer = row.producer();
        for (int index = 0; index < row.count; index++) {
            Message reply = producer.request(Content.message(row.topic(), index), TIMEOUT_MS);
            row.write("replied", "index", index, "sha1", Content.sha1(turned(reply.getBody())), "topic",
                reply.getTopic(), "type", reply.getProperty("MSG_TYPE"), "pushed",
                reply.getProperty("PUSH_REPLY_TIME") != null, "arrived", reply.getProperty("ARRIVE_TIME") != null,
                "stored", ((MessageExt) reply).getStoreTimestamp() > 0);
        }
        try {
            producer.request(Content.message(row.topic("unheard"), row.count), UNHEARD_MS);
            row.write("unheard", "error", "none");
        } catch (RequestTimeoutException expected) {
            row.write("unheard", "error", "timeout");
        }
    }
}
