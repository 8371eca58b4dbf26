package interop;

import java.io.PrintStream;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.BufferedOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.Map;

/** One JSON object per line on standard output; written by hand so that both client versions need no library. */
final class Events {
    private static final PrintStream OUT = new PrintStream(
        new BufferedOutputStream(new FileOutputStream(FileDescriptor.out), 1 << 16), false, StandardCharsets.UTF_8);

    private Events() {
    }

    /** Names and values alternate; numbers, booleans, text, collections and maps of them are understood. */
    static void write(String event, Object... namesAndValues) {
        StringBuilder line = new StringBuilder(256);
        line.append("{\"event\":");
        quote(line, event);
        line.append(",\"at\":").append(System.currentTimeMillis());
        for (int i = 0; i < namesAndValues.length; i += 2) {
            line.append(',');
            quote(line, (String) namesAndValues[i]);
            line.append(':');
            value(line, namesAndValues[i + 1]);
        }
        pass(line.append('}').toString());
    }

    /** A line as it is, from here or from a child. */
    static void pass(String line) {
        synchronized (OUT) {
            OUT.println(line);
            OUT.flush();
        }
    }

    private static void value(StringBuilder line, Object value) {
        if (value == null || value instanceof Number || value instanceof Boolean) {
            line.append(value);
        } else if (value instanceof Map) {
            char separator = '{';
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                line.append(separator);
                quote(line, String.valueOf(entry.getKey()));
                line.append(':');
                value(line, entry.getValue());
                separator = ',';
            }
            line.append(separator == '{' ? "{}" : "}");
        } else if (value instanceof Collection) {
            char separator = '[';
            for (Object item : (Collection<?>) value) {
                line.append(separator);
                value(line, item);
                separator = ',';
            }
            line.append(separator == '[' ? "[]" : "]");
        } else {
            quote(line, value.toString());
        }
    }

    private static void quote(StringBuilder line, String text) {
        line.append('"');
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            if (c == '"' || c == '\\') {
                line.append('\\').append(c);
            } else if (c < ' ') {
                line.append(String.format("\\u%04x", (int) c));
            } else {
                line.append(c);
            }
        }
        line.append('"');
    }
}
