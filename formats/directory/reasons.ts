/** What the system says of a path, as a user would. */
const REASONS: Readonly<Record<string, string>> = {
  ENOENT: 'it does not exist',
  EACCES: 'permission denied',
  EPERM: 'the operation is not permitted',
  EISDIR: 'it is a directory',
  ENOTDIR: 'a part of its path is not a directory',
  EROFS: 'the file system is read-only',
  EMFILE: 'too many files are open',
  ENFILE: 'too many files are open',
  ENAMETOOLONG: 'a name in its path is too long',
  ELOOP: 'its links form a loop',
  ENXIO: 'it is a device or a pipe',
  EIO: 'the disk or its file system failed',
};

/** The reason of a system error; of any other its message. */
export function reasonOf(error: unknown): string {
  const { code = '', message } = error as NodeJS.ErrnoException;
  return REASONS[code] ?? message;
}
