package pgdelta.storage;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import io.delta.storage.HadoopFileSystemLogStore;
import java.io.File;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.AccessDeniedException;
import java.nio.file.DirectoryStream;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.PosixFilePermission;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.Iterator;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.spark.sql.delta.util.Codec;

/**
 * Delta's log on a file system that this machine mounts (`file:` URLs), NFS included.
 *
 * <p>A log entry is written to a temporary file and becomes visible by a hard link, which the file system
 * refuses if the name exists. That is one step, between processes and between machines. Delta's own store checks
 * first and renames then, so that two processes can both believe that they committed version 7.
 *
 * <p>Before a commit is visible, its data files, its log entry and the folders that name them are synced to
 * disk: what Delta reports as committed survives a power failure. The system property pgdelta.sync=false omits
 * that, for measurements.
 *
 * <p>Set as spark.delta.logStore.file.impl. Throws FileAlreadyExistsException if the version exists, and
 * IOException with what to do if the file system has no hard links.
 */
public class LinkLogStore extends HadoopFileSystemLogStore {

  private static final Pattern COMMIT = Pattern.compile("(\\d{20})\\.json");
  private static final Pattern CHECKPOINTED = Pattern.compile("\"version\"\\s*:\\s*(\\d+)");
  private static final String LAST_CHECKPOINT = "_last_checkpoint";
  private static final JsonFactory JSON = new JsonFactory();
  private static final int BUFFER = 1 << 16;

  /** The texts of EPERM, ENOSYS, EOPNOTSUPP, EMLINK and EXDEV: Java's exceptions have no error numbers. */
  private static final List<String> NO_LINKS =
      Arrays.asList(
          "Operation not permitted",
          "Function not implemented",
          "Operation not supported",
          "Too many links",
          "Invalid cross-device link");

  public LinkLogStore(Configuration configuration) {
    super(configuration);
  }

  @Override
  public void write(
      org.apache.hadoop.fs.Path path,
      Iterator<String> actions,
      Boolean overwrite,
      Configuration configuration)
      throws IOException {
    Path target = new File(path.toUri().getPath()).toPath();
    Path folder = target.getParent();
    String name = target.getFileName().toString();
    Matcher commit = COMMIT.matcher(name);
    boolean isCommit = commit.matches();
    boolean syncs = isSyncing() && (isCommit || name.equals(LAST_CHECKPOINT));
    if (!overwrite && Files.exists(target)) {
      throw new FileAlreadyExistsException(target.toString());
    }
    Set<Path> written = new LinkedHashSet<>();
    Path temporary = folder.resolve("." + name + "." + UUID.randomUUID() + ".tmp");
    try {
      try (FileChannel channel =
          FileChannel.open(temporary, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE)) {
        writeLines(channel, actions, isCommit && syncs ? written : null, folder.getParent());
        if (syncs) {
          channel.force(true);
        }
      } catch (NoSuchFileException error) {
        throw (IOException) new FileNotFoundException(folder + " does not exist").initCause(error);
      }
      setPermissions(temporary, configuration);
      if (isCommit && syncs) {
        forceData(written, folder.getParent());
      }
      if (name.equals(LAST_CHECKPOINT) && syncs) {
        forceCheckpoint(temporary, folder);
      }
      // Readers would refuse the new file by Hadoop's checksum of an earlier one of this name.
      Files.deleteIfExists(folder.resolve("." + name + ".crc"));
      if (overwrite) {
        Files.move(
            temporary, target, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
      } else {
        link(target, temporary);
      }
    } finally {
      Files.deleteIfExists(temporary);
    }
    if (syncs) {
      force(folder);
      if (isCommit && Long.parseLong(commit.group(1)) == 0) {
        // The table may be new, and the folders above it too.
        for (Path above = folder.getParent(); above != null; above = above.getParent()) {
          force(above);
        }
      }
    }
  }

  @Override
  public Boolean isPartialWriteVisible(org.apache.hadoop.fs.Path path, Configuration configuration) {
    // This store never writes partially. Spark writes the checkpoints, and true makes it rename them into place.
    return true;
  }

  private static boolean isSyncing() {
    return !"false".equals(System.getProperty("pgdelta.sync"));
  }

  private static void link(Path target, Path temporary) throws IOException {
    try {
      Files.createLink(target, temporary);
    } catch (FileAlreadyExistsException error) {
      // NFS repeats a request whose answer was lost, and then finds the link that the first request made.
      if (!Files.isSameFile(target, temporary)) {
        throw error;
      }
    } catch (UnsupportedOperationException | FileSystemException error) {
      if (error instanceof FileSystemException failure && !NO_LINKS.contains(failure.getReason())) {
        throw failure;
      }
      throw new IOException(
          "The file system of "
              + target.getParent()
              + " has no hard links ("
              + error
              + "), so two writers could commit one version. Use a storage.root on a file system with hard links.",
          error);
    }
  }

  /** Write the lines; collect the data files that they add, unless `written` is null. */
  private static void writeLines(
      FileChannel channel, Iterator<String> lines, Set<Path> written, Path table) throws IOException {
    StringBuilder pending = new StringBuilder();
    while (lines.hasNext()) {
      String line = lines.next();
      pending.append(line).append('\n');
      if (written != null) {
        collectFiles(line, table, written);
      }
      if (pending.length() >= BUFFER || !lines.hasNext()) {
        ByteBuffer bytes = ByteBuffer.wrap(pending.toString().getBytes(StandardCharsets.UTF_8));
        while (bytes.hasRemaining()) {
          channel.write(bytes);
        }
        pending.setLength(0);
      }
    }
  }

  /** Collect the files that an action of Delta's log protocol (add, cdc) adds to the table. */
  private static void collectFiles(String action, Path table, Set<Path> written) throws IOException {
    try (JsonParser parser = JSON.createParser(action)) {
      if (parser.nextToken() != JsonToken.START_OBJECT) {
        return;
      }
      String kind = parser.nextFieldName();
      if (!"add".equals(kind) && !"cdc".equals(kind)) {
        return;
      }
      if (parser.nextToken() != JsonToken.START_OBJECT) {
        return;
      }
      while (parser.nextToken() == JsonToken.FIELD_NAME) {
        String field = parser.currentName();
        parser.nextToken();
        if (field.equals("path")) {
          addFile(parser.getText(), table, written);
        } else if (field.equals("deletionVector")) {
          collectVector(parser, table, written);
        } else {
          parser.skipChildren();
        }
      }
    }
  }

  private static void collectVector(JsonParser parser, Path table, Set<Path> written)
      throws IOException {
    String storage = null;
    String where = null;
    while (parser.nextToken() == JsonToken.FIELD_NAME) {
      String field = parser.currentName();
      parser.nextToken();
      if (field.equals("storageType")) {
        storage = parser.getText();
      } else if (field.equals("pathOrInlineDv")) {
        where = parser.getText();
      } else {
        parser.skipChildren();
      }
    }
    if ("p".equals(storage) && where != null) {
      addFile(where, table, written);
    } else if ("u".equals(storage) && where != null) {
      // an optional prefix (a folder), and a UUID of 20 characters
      int length = where.length() - Codec.Base85Codec$.MODULE$.ENCODED_UUID_LENGTH();
      UUID id = Codec.Base85Codec$.MODULE$.decodeUUID(where.substring(length));
      Path folder = length == 0 ? table : table.resolve(where.substring(0, length));
      written.add(folder.resolve("deletion_vector_" + id + ".bin"));
    }
  }

  private static void addFile(String path, Path table, Set<Path> written) throws IOException {
    try {
      URI uri = new URI(path);
      if (uri.getScheme() == null || uri.getScheme().equals("file")) {
        written.add(table.resolve(uri.getPath()));
      }
    } catch (URISyntaxException error) {
      throw new IOException("An action has a path that is no URI.", error);
    }
  }

  /** Sync the files, Hadoop's checksums of them, and their folders up to the table's. */
  private static void forceData(Set<Path> files, Path table) throws IOException {
    Set<Path> folders = new LinkedHashSet<>();
    for (Path file : files) {
      // A file that does not exist any more, and that REORG or RESTORE adds again, was not written by this
      // commit.
      if (!force(file)) {
        continue;
      }
      force(file.resolveSibling("." + file.getFileName() + ".crc"));
      for (Path each = file.getParent(); each != null && each.startsWith(table); each = each.getParent()) {
        folders.add(each);
      }
      folders.add(file.getParent());
    }
    for (Path folder : folders) {
      force(folder);
    }
  }

  private static void forceCheckpoint(Path pointer, Path folder) throws IOException {
    Matcher version = CHECKPOINTED.matcher(Files.readString(pointer));
    if (!version.find()) {
      return;
    }
    String start = String.format("%020d.checkpoint", Long.parseLong(version.group(1)));
    try (DirectoryStream<Path> parts = Files.newDirectoryStream(folder, start + "*")) {
      for (Path part : parts) {
        force(part);
        force(part.resolveSibling("." + part.getFileName() + ".crc"));
      }
    }
    Path sidecars = folder.resolve("_sidecars");
    if (Files.isDirectory(sidecars)) {
      try (DirectoryStream<Path> parts = Files.newDirectoryStream(sidecars)) {
        for (Path part : parts) {
          force(part);
        }
      }
      force(sidecars);
    }
    force(folder);
  }

  /** Sync a file or a folder to disk; return whether it exists. */
  private static boolean force(Path path) throws IOException {
    try (FileChannel channel = FileChannel.open(path, StandardOpenOption.READ)) {
      channel.force(true);
      return true;
    } catch (NoSuchFileException error) {
      return false;
    } catch (AccessDeniedException error) {
      // This user created nothing in a folder that it may not read; another who did has synced it.
      if (Files.isDirectory(path)) {
        return true;
      }
      throw error;
    }
  }

  private static void setPermissions(Path path, Configuration configuration) throws IOException {
    int mode = 0666 & ~FsPermission.getUMask(configuration).toShort();
    Set<PosixFilePermission> permissions = EnumSet.noneOf(PosixFilePermission.class);
    PosixFilePermission[] all = {
      PosixFilePermission.OTHERS_WRITE,
      PosixFilePermission.OTHERS_READ,
      PosixFilePermission.GROUP_WRITE,
      PosixFilePermission.GROUP_READ,
      PosixFilePermission.OWNER_WRITE,
      PosixFilePermission.OWNER_READ
    };
    int[] bits = {02, 04, 020, 040, 0200, 0400};
    for (int i = 0; i < all.length; i++) {
      if ((mode & bits[i]) != 0) {
        permissions.add(all[i]);
      }
    }
    try {
      Files.setPosixFilePermissions(path, permissions);
    } catch (UnsupportedOperationException | FileSystemException error) {
      // The mount has no permissions.
      return;
    }
  }
}
