package interop;

import java.util.Arrays;

/**
 * Drives the Java client from a test: what to do comes as arguments, what happened leaves as JSON lines.
 *
 * <pre>
 * rows LABEL NAMESRV AT_A_TIME ROW=COUNT[/alone|/PART]...
 * </pre>
 */
public final class Interop {
    private Interop() {
    }

    public static void main(String[] args) throws Exception {
        if (args.length < 5 || !args[0].equals("rows")) {
            System.err.println("usage: rows LABEL NAMESRV AT_A_TIME ROW=COUNT[/alone|/PART]...");
            System.exit(2);
        }
        Rows.run(args[1], args[2], Integer.parseInt(args[3]), Arrays.copyOfRange(args, 4, args.length));
        // Client threads of either version may outlive shutdown(); the story is over here. Not exit(): hooks wait.
        Runtime.getRuntime().halt(0);
    }
}
