import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.filter.SqlFilter;
import org.apache.rocketmq.filter.expression.Expression;

/**
 * What the broker's own evaluator makes of conditions. A line in: the condition and the properties of some messages, in
 * base64, with blanks between. A line out, after "verdicts ": "refused", or a letter for each message: T, F, N for NULL,
 * E for an error.
 */
public final class Verdicts {
    private Verdicts() {
    }

    public static void main(String[] args) throws Exception {
        PrintStream console = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        BufferedReader cases = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = cases.readLine(); line != null && !line.equals("end"); line = cases.readLine()) {
            String[] parts = line.split(" ", -1);
            console.println("verdicts " + verdicts(parts));
        }
        console.println("done");
        console.flush();
        System.exit(0);
    }

    private static String verdicts(String[] parts) {
        Expression compiled;
        try {
            compiled = new SqlFilter().compile(text(parts[0]));
        } catch (Throwable refused) {
            return "refused";
        }
        StringBuilder letters = new StringBuilder();
        for (int i = 1; i < parts.length; i++) {
            letters.append(verdict(compiled, text(parts[i])));
        }
        return letters.toString();
    }

    private static char verdict(Expression compiled, String properties) {
        try {
            Object found = compiled.evaluate(
                new MessageEvaluationContext(MessageDecoder.string2messageProperties(properties)));
            return found == null ? 'N' : (Boolean) found ? 'T' : 'F';
        } catch (Throwable failed) {
            return 'E';
        }
    }

    private static String text(String coded) {
        return new String(Base64.getDecoder().decode(coded), StandardCharsets.UTF_8);
    }
}
