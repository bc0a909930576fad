import io.delta.storage.HDFSLogStore;
import java.io.IOException;
import java.nio.file.FileAlreadyExistsException;
import java.util.Iterator;
import java.util.concurrent.ThreadLocalRandom;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

/**
 * A store that looks whether a version exists, waits, and writes it: the window that Delta's own store for
 * `file:` has between processes, held open. With it the race of jobs has to find losses.
 *
 * How long it waits is left to chance. Two processes that wait equally long write at the same moment, and there
 * Hadoop's rename looks once more and refuses one of them.
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
      Thread.sleep(ThreadLocalRandom.current().nextLong(500, 1500));
    } catch (InterruptedException ended) {
      Thread.currentThread().interrupt();
    }
    super.write(path, actions, true, configuration);
  }
}
