package interop;

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import org.apache.rocketmq.common.message.Message;

/**
 * What message number n looks like. The same rules are written down in tests/interop/content.py, which
 * checks what arrives; a change here is a change there.
 */
final class Content {
    static final String INDEX = "index";

    private Content() {
    }

    static Message message(String topic, int index) {
        Message message = new Message(topic, body(index));
        if (index % 9 == 7) {
            message.setTags("标签");
        } else if (index % 9 != 8) {
            message.setTags("Tag" + index % 5);
        }
        if (index % 10 != 9) {
            message.setKeys("key-" + index + " 键-" + index % 97);
        }
        message.putUserProperty(INDEX, Integer.toString(index));
        message.putUserProperty("colour", "rouge é 红 🚀 " + index % 13);
        message.putUserProperty("quoted", "say \"hi\" \\ / <&> = ,;:\t" + index % 3);
        return message;
    }

    /** One byte to 6 KiB: below, at and above the 4 KiB from which the client compresses. */
    private static int size(int index) {
        if (index % 50 == 0) {
            return 4096 + index * 37 % 2049;
        }
        return index % 7 == 0 ? 1 + index * 13 % 16 : 1 + index * 131 % 900;
    }

    private static byte[] body(int index) {
        byte[] pattern = ("«" + index + "» 消息 é 🚀 ").getBytes(StandardCharsets.UTF_8);
        byte[] body = new byte[size(index)];
        for (int i = 0; i < body.length; i++) {
            body[i] = pattern[i % pattern.length];
        }
        return body;
    }

    static String sha1(byte[] body) {
        try {
            StringBuilder hex = new StringBuilder(40);
            for (byte b : MessageDigest.getInstance("SHA-1").digest(body)) {
                hex.append(String.format("%02x", b));
            }
            return hex.toString();
        } catch (NoSuchAlgorithmException impossible) {
            throw new IllegalStateException(impossible);
        }
    }
}
