import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/** A name node and a data node in one process, until standard input ends. */
public class MiniHdfs {
  public static void main(String[] args) throws Exception {
    Configuration conf = new Configuration();
    conf.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, args[0]);
    MiniDFSCluster cluster = new MiniDFSCluster.Builder(conf).numDataNodes(1).build();
    cluster.waitActive();
    System.out.println(cluster.getNameNode().getHttpAddress().getPort());
    System.out.flush();
    while (System.in.read() >= 0) {}
    cluster.shutdown();
  }
}
