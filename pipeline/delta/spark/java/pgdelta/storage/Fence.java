package pgdelta.storage;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * The leases under which this JVM commits: a commit to a lake whose lease has another holder is refused.
 *
 * <p>The lease is read when all earlier versions of the table are known to exist, and before the version is
 * created. If another process has committed one of them since it acquired the lease, the lease has its token. If it
 * commits later, the store lets only one of both create the version. So no commit follows one of a later holder.
 */
public final class Fence {

  private static final int ATTEMPTS = 8; // to read a lease that is replaced meanwhile
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
    FileSystem files = path.getFileSystem(configuration);
    String content;
    try {
      content = scheme.equals("hdfs") ? readNewest(files, path) : read(files, path);
    } catch (FileNotFoundException error) {
      throw new IOException(path + " was removed, so this job may not commit. Nothing is lost. Run again.", error);
    }
    if (!content.contains("\"" + token + "\"")) {
      throw new IOException(
          "Another job has taken over " + path + ", so this one may not commit. Nothing is lost.");
    }
  }

  /** Return the content of a lease on HDFS: that of the file with the greatest number in its folder. */
  private static String readNewest(FileSystem files, Path folder) throws IOException {
    for (int attempt = 1; ; attempt++) {
      FileStatus newest = null;
      for (FileStatus each : files.listStatus(folder)) {
        if (newest == null || each.getPath().getName().compareTo(newest.getPath().getName()) > 0) {
          newest = each;
        }
      }
      if (newest == null) {
        throw new FileNotFoundException(folder.toString());
      }
      try {
        return read(files, newest.getPath());
      } catch (FileNotFoundException replaced) {
        if (attempt == ATTEMPTS) {
          throw replaced;
        }
      }
    }
  }

  private static String read(FileSystem files, Path path) throws IOException {
    try (FSDataInputStream stream = files.open(path)) {
      return new String(stream.readAllBytes(), StandardCharsets.UTF_8);
    }
  }

  /** Return a URL without its scheme: s3 and s3a are names of one store. */
  private static String address(String url) {
    String path = url.substring(url.indexOf("://") + 3);
    return path.endsWith("/") ? path.substring(0, path.length() - 1) : path;
  }
}
