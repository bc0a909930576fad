import io.delta.storage.LogStore;
import java.io.RandomAccessFile;
import java.nio.ByteOrder;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.FileAlreadyExistsException;
import java.util.Arrays;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

/**
 * One process of a race for versions of a Delta log: store class, log folder, meeting file, its number, how many
 * processes, first version, how many versions. Prints each version that the store told it was written.
 *
 * The meeting file holds one counter for each process, in shared memory: a process announces the version that it is
 * ready for and spins until all others have.
 */
public class Race {
  public static void main(String[] arguments) throws Exception {
    Configuration configuration = new Configuration();
    LogStore store =
        (LogStore)
            Class.forName(arguments[0]).getConstructor(Configuration.class).newInstance(configuration);
    int number = Integer.parseInt(arguments[3]);
    int count = Integer.parseInt(arguments[4]);
    long first = Long.parseLong(arguments[5]);
    long races = Long.parseLong(arguments[6]);
    StringBuilder told = new StringBuilder();
    try (RandomAccessFile file = new RandomAccessFile(arguments[2], "rw")) {
      MappedByteBuffer meeting =
          file.getChannel().map(FileChannel.MapMode.READ_WRITE, 0, 64L * count);
      meeting.order(ByteOrder.nativeOrder());
      for (long version = first; version < first + races; version++) {
        meeting.putLong(64 * number, version + 1);
        meet(meeting, count, version + 1);
        Path path = new Path(arguments[1] + "/" + String.format("%020d.json", version));
        String line = "{\"commitInfo\":{\"txnId\":\"" + number + "-" + version + "\"}}";
        try {
          store.write(path, Arrays.asList(line).iterator(), false, configuration);
          told.append(version).append('\n');
        } catch (FileAlreadyExistsException lost) {
          // somebody else was first
        }
      }
    }
    System.out.print(told);
  }

  private static void meet(MappedByteBuffer meeting, int count, long turn) {
    for (int other = 0; other < count; other++) {
      // all processes may share one core: then only a yield lets the others come
      while (meeting.getLong(64 * other) < turn) {
        Thread.yield();
      }
      java.lang.invoke.VarHandle.fullFence();
    }
  }
}
