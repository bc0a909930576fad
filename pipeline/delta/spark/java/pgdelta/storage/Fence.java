package pgdelta.storage;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.Path;

/**
 * The leases under which this JVM commits: a commit to a lake whose lease has another holder is refused.
 *
 * <p>The lease is read when all earlier versions of the table are known to exist, and before the version is
 * created. If another process has committed one of them since it acquired the lease, the lease has its token. If it
 * commits later, the store lets only one of both create the version. So no commit follows one of a later holder.
 */
public final class Fence {

  private static final Map<String, Fence> HELD = new ConcurrentHashMap<>();

  private final String lease;
  private final String token;

  private Fence(String lease, String token) {
    this.lease = lease;
    this.token = token;
  }

  /** Refuse commits below a root, except those of bronze, unless the object `lease` has a token. */
  public static void hold(String root, String lease, String token) {
    HELD.put(address(root), new Fence(address(lease), token));
  }

  /** Refuse no commit below a root any more. */
  public static void release(String root) {
    HELD.remove(address(root));
  }

  /** Throw IOException if the process of this JVM may not commit a file to a table's log. */
  static void check(Path file, Configuration configuration) throws IOException {
    if (HELD.isEmpty()) {
      return;
    }
    String address = address(file.toString());
    for (Map.Entry<String, Fence> held : HELD.entrySet()) {
      String root = held.getKey();
      if (address.startsWith(root + "/") && !address.startsWith(root + "/bronze/")) {
        held.getValue().check(file.toUri().getScheme(), configuration);
      }
    }
  }

  private void check(String scheme, Configuration configuration) throws IOException {
    Path path = new Path(scheme + "://" + lease);
    String content;
    try (FSDataInputStream stream = path.getFileSystem(configuration).open(path)) {
      content = new String(stream.readAllBytes(), StandardCharsets.UTF_8);
    } catch (FileNotFoundException error) {
      throw new IOException(path + " was removed, so this job may not commit. Nothing is lost. Run again.", error);
    }
    if (!content.contains("\"" + token + "\"")) {
      throw new IOException(
          "Another job has taken over " + path + ", so this one may not commit. Nothing is lost.");
    }
  }

  /** Return a URL without its scheme: s3 and s3a are names of one store. */
  private static String address(String url) {
    String path = url.substring(url.indexOf("://") + 3);
    return path.endsWith("/") ? path.substring(0, path.length() - 1) : path;
  }
}
