package pgdelta.storage;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Arrays;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Delta's log on S3 and on stores with its protocol, by Hadoop's S3A client.
 *
 * <p>A log entry is created by one request with the condition that its name does not exist (If-None-Match),
 * which the store refuses to every writer but the first, between processes and between machines. Delta's own
 * store for S3 checks first and writes then, so that two drivers can both believe that they committed version 7.
 *
 * <p>If the answer to a request is lost, the client repeats the request, and the store refuses it because of the
 * first one. So after each failure the entry is read: if it is the one that was written, the commit is made.
 *
 * <p>Closing a stream uploads what it has. So a stream that failed is aborted and not closed.
 *
 * <p>A commit under a lease that another process has taken over is refused (Fence).
 *
 * <p>Set as spark.delta.logStore.s3a.impl and spark.delta.logStore.s3.impl. Throws FileAlreadyExistsException if
 * the version exists.
 */
public class S3LogStore extends HadoopFileSystemLogStore {

  // Hadoop's constant for it is newer than Spark 4.0's Hadoop, against which this class must compile too.
  private static final String CREATE_IF_ABSENT = "fs.option.create.conditional.overwrite";

  public S3LogStore(Configuration configuration) {
    super(configuration);
  }

  @Override
  public void write(
      Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration)
      throws IOException {
    FileSystem files = path.getFileSystem(configuration);
    byte[] content = contentOf(actions);
    if (overwrite) {
      upload(files.create(path, true), content);
      return;
    }
    Fence.check(path, configuration);
    try {
      create(files, path, content);
    } catch (IOException error) {
      byte[] found = read(files, path, error);
      if (!Arrays.equals(found, content)) {
        throw (IOException) new FileAlreadyExistsException(path.toString()).initCause(error);
      }
    }
  }

  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration configuration) {
    return false; // an object is visible when its upload is complete
  }

  private static byte[] contentOf(Iterator<String> actions) {
    ByteArrayOutputStream content = new ByteArrayOutputStream();
    while (actions.hasNext()) {
      content.writeBytes((actions.next() + "\n").getBytes(StandardCharsets.UTF_8));
    }
    return content.toByteArray();
  }

  private static void create(FileSystem files, Path path, byte[] content) throws IOException {
    FSDataOutputStreamBuilder<?, ?> builder = files.createFile(path);
    builder.overwrite(false);
    builder.must(CREATE_IF_ABSENT, true);
    upload(builder.build(), content);
  }

  /** Write the content and close the stream, which makes it visible; abort the upload if writing fails. */
  private static void upload(FSDataOutputStream stream, byte[] content) throws IOException {
    try {
      stream.write(content);
    } catch (IOException | RuntimeException | Error error) {
      try {
        stream.abort();
      } catch (RuntimeException notAborted) {
        error.addSuppressed(notAborted);
      }
      throw error;
    }
    stream.close();
  }

  /** Return the entry that exists; throw the error of creating it if there is none. */
  private static byte[] read(FileSystem files, Path path, IOException error) throws IOException {
    try (FSDataInputStream stream = files.open(path)) {
      return stream.readAllBytes();
    } catch (FileNotFoundException none) {
      throw error;
    } catch (IOException unreadable) {
      error.addSuppressed(unreadable);
      throw error;
    }
  }
}
