import java.io.File;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/**
 * HDFS on loopback, of one name node and two data nodes in an empty folder. Prints its URL and the address of its
 * HTTP server, and ends when its input ends.
 */
public class Hdfs {
  public static void main(String[] arguments) throws Exception {
    MiniDFSCluster cluster =
        new MiniDFSCluster.Builder(new Configuration(), new File(arguments[0]))
            .numDataNodes(2)
            .build();
    try {
      cluster.waitActive();
      System.out.println(cluster.getURI());
      System.out.println(cluster.getHttpUri(0));
      System.out.flush();
      while (System.in.read() >= 0) {
        // nothing is expected
      }
    } finally {
      cluster.shutdown(true);
    }
  }
}
