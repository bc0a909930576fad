import io.delta.storage.LogStore;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.Arrays;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import pgdelta.storage.Fence;

/**
 * Commits to Delta logs under a lease: store class, root, URL of the lease, its token. Reads from stdin the path of
 * a log entry a line, and prints what became of each.
 */
public class FencedWrites {
  public static void main(String[] arguments) throws Exception {
    Configuration configuration = new Configuration();
    LogStore store =
        (LogStore)
            Class.forName(arguments[0]).getConstructor(Configuration.class).newInstance(configuration);
    Fence.hold(arguments[1], arguments[2], arguments[3]);
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      if (line.equals("release")) {
        Fence.release(arguments[1]);
        System.out.println("released");
        continue;
      }
      String entry = "{\"commitInfo\":{\"txnId\":\"" + line + "\"}}";
      try {
        store.write(new Path(line), Arrays.asList(entry).iterator(), false, configuration);
        System.out.println("written");
      } catch (IOException error) {
        System.out.println(error.getMessage());
      }
    }
  }
}
