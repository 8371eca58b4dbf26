package interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;

/**
 * Drives the Java client from a test: what to do comes as arguments, what happened leaves as JSON lines.
 *
 * <pre>
 * send NAMESRV TOPIC COUNT sync|async|oneway GROUP [first=0] [window=256] [pace=0] [queue=-1]
 * push NAMESRV TOPIC GROUP EXPECT TIMEOUT_S [instances=1] [batch=1] [pull=32] [interval=0]
 *      [capture=false] [deaf=false] [stay=false]
 * </pre>
 */
public final class Interop {
    private Interop() {
    }

    public static void main(String[] args) throws Exception {
        if (args.length < 6) {
            System.err.println("usage: send NAMESRV TOPIC COUNT MODE GROUP [name=value...]"
                + " | push NAMESRV TOPIC GROUP EXPECT TIMEOUT_S [name=value...]");
            System.exit(2);
        }
        Options options = new Options(Arrays.copyOfRange(args, 6, args.length));
        switch (args[0]) {
            case "send":
                Send.run(args[1], args[2], Integer.parseInt(args[3]), args[4], args[5], options);
                break;
            case "push":
                Push.run(args[1], args[2], args[3], Integer.parseInt(args[4]), Integer.parseInt(args[5]), options);
                break;
            default:
                System.err.println("unknown command " + args[0]);
                System.exit(2);
        }
        // Client threads of either version may outlive shutdown(); the story is over here.
        System.exit(0);
    }

    /** Opens when the parent writes a line or closes our standard input. */
    static CountDownLatch toldToStop() {
        CountDownLatch told = new CountDownLatch(1);
        Thread listener = new Thread(() -> {
            try {
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8)).readLine();
            } catch (java.io.IOException closed) {
                // A closed input means the same as a line.
            }
            told.countDown();
        }, "told-to-stop");
        listener.setDaemon(true);
        listener.start();
        return told;
    }

    /** name=value arguments with defaults. */
    static final class Options {
        private final Map<String, String> values = new HashMap<>();

        Options(String[] arguments) {
            for (String argument : arguments) {
                int equals = argument.indexOf('=');
                if (equals < 1) {
                    throw new IllegalArgumentException("option without '=': " + argument);
                }
                values.put(argument.substring(0, equals), argument.substring(equals + 1));
            }
        }

        int number(String name, int otherwise) {
            return Integer.parseInt(values.getOrDefault(name, Integer.toString(otherwise)));
        }

        boolean flag(String name) {
            return Boolean.parseBoolean(values.get(name));
        }
    }
}
