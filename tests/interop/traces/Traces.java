import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.rocketmq.client.trace.TraceBean;
import org.apache.rocketmq.client.trace.TraceContext;
import org.apache.rocketmq.client.trace.TraceDataEncoder;
import org.apache.rocketmq.client.trace.TraceType;

/**
 * What Java's own reader makes of trace bodies. A line in: a body in base64. A line out for each entry, after "entry ",
 * with '|' between its fields; then "body".
 */
public final class Traces {
    private Traces() {
    }

    public static void main(String[] args) throws Exception {
        PrintStream console = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        BufferedReader bodies = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = bodies.readLine(); line != null && !line.equals("end"); line = bodies.readLine()) {
            String body = new String(Base64.getDecoder().decode(line), StandardCharsets.UTF_8);
            try {
                for (TraceContext found : TraceDataEncoder.decoderFromTraceDataString(body)) {
                    console.println("entry " + told(found));
                }
            } catch (Exception refused) {
                console.println("entry " + refused);
            }
        }
        console.println("done");
        console.flush();
        System.exit(0);
    }

    private static String told(TraceContext found) {
        TraceBean bean = found.getTraceBeans().get(0);
        String which = String.join("|", found.getTraceType().name(), String.valueOf(found.getTimeStamp()),
            found.getRegionId(), found.getGroupName(), bean.getTopic(), bean.getMsgId());
        if (found.getTraceType() == TraceType.Recall) {
            return which + "|" + found.isSuccess();
        }
        return String.join("|", which, bean.getTags(), bean.getKeys(), bean.getStoreHost(), bean.getMsgType().name(),
            bean.getTransactionId(), String.valueOf(bean.getTransactionState()),
            String.valueOf(bean.isFromTransactionCheck()));
    }
}
