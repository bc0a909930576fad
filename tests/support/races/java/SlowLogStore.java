import io.delta.storage.HDFSLogStore;
import java.io.IOException;
import java.nio.file.FileAlreadyExistsException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

/**
 * A store that looks whether a version exists, waits, and writes it: the window that Delta's own store for
 * `file:` has between processes, held open. With it the race of jobs has to find losses.
 */
public class SlowLogStore extends HDFSLogStore {
  public SlowLogStore(Configuration configuration) {
    super(configuration);
  }

  @Override
  public void write(
      Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration)
      throws IOException {
    if (!overwrite && path.getFileSystem(configuration).exists(path)) {
      throw new FileAlreadyExistsException(path.toString());
    }
    try {
      Thread.sleep(1000);
    } catch (InterruptedException ended) {
      Thread.currentThread().interrupt();
    }
    super.write(path, actions, true, configuration);
  }
}
