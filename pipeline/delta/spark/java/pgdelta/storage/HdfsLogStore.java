package pgdelta.storage;

import io.delta.storage.HDFSLogStore;
import java.io.IOException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

/**
 * Delta's log store for HDFS, which creates a version by a rename that HDFS refuses if the version exists.
 *
 * <p>A commit under a lease that another process has taken over is refused (Fence).
 *
 * <p>Set as spark.delta.logStore.hdfs.impl. Throws FileAlreadyExistsException if the version exists.
 */
public class HdfsLogStore extends HDFSLogStore {

  public HdfsLogStore(Configuration configuration) {
    super(configuration);
  }

  @Override
  public void write(
      Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration)
      throws IOException {
    if (!overwrite) {
      Fence.check(path, configuration);
    }
    super.write(path, actions, overwrite, configuration);
  }
}
