import io.delta.storage.LogStore;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.OutputStream;
import java.net.URI;
import java.util.Arrays;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Abortable;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.util.Progressable;

/**
 * Writes an entry to a store whose streams fail in `write`: store class, `create` or `overwrite`, and whether a
 * stream is `abortable` or `plain`. Prints what was called on the stream, and the error.
 */
public class BrokenUpload {
  private static boolean isAbortable;

  public static void main(String[] arguments) throws Exception {
    Configuration configuration = new Configuration();
    configuration.set("fs.broken.impl", Files.class.getName());
    LogStore store =
        (LogStore)
            Class.forName(arguments[0]).getConstructor(Configuration.class).newInstance(configuration);
    isAbortable = arguments[2].equals("abortable");
    Path path = new Path("broken://store/t/_delta_log/00000000000000000000.json");
    try {
      store.write(
          path, Arrays.asList("{}").iterator(), arguments[1].equals("overwrite"), configuration);
      System.out.println("written");
    } catch (IOException error) {
      System.out.println(error.getMessage());
    }
  }

  public static class Files extends RawLocalFileSystem {
    @Override
    public void initialize(URI name, Configuration configuration) throws IOException {
      setConf(configuration);
    }

    @Override
    public FSDataInputStream open(Path path, int size) throws IOException {
      throw new FileNotFoundException(path.toString());
    }

    @Override
    public FSDataOutputStream create(
        Path path,
        FsPermission permission,
        boolean overwrite,
        int size,
        short replication,
        long blockSize,
        Progressable progress)
        throws IOException {
      return stream();
    }

    @Override
    public FSDataOutputStream create(
        Path path, boolean overwrite, int size, short replication, long blockSize, Progressable progress)
        throws IOException {
      return stream();
    }

    @Override
    public FSDataOutputStreamBuilder createFile(Path path) {
      return new Builder(this, path);
    }

    private static FSDataOutputStream stream() throws IOException {
      return new FSDataOutputStream(isAbortable ? new AbortableStream() : new PlainStream(), null);
    }
  }

  private static class Builder extends FSDataOutputStreamBuilder<FSDataOutputStream, Builder> {
    Builder(FileSystem files, Path path) {
      super(files, path);
    }

    @Override
    public Builder getThisBuilder() {
      return this;
    }

    @Override
    public FSDataOutputStream build() throws IOException {
      return Files.stream();
    }
  }

  private static class PlainStream extends OutputStream {
    @Override
    public void write(int value) throws IOException {
      throw new IOException("no space for a buffer");
    }

    @Override
    public void write(byte[] content, int start, int length) throws IOException {
      throw new IOException("no space for a buffer");
    }

    @Override
    public void close() {
      System.out.println("closed");
    }
  }

  private static class AbortableStream extends PlainStream implements Abortable {
    @Override
    public AbortableResult abort() {
      System.out.println("aborted");
      return null;
    }
  }
}
