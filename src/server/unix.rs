//! The file of a Unix socket: made at start, replaced when a crash has left it behind, removed at a stop, and never taken
//! from a process that listens on it.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Socket, Type};

/// A socket's file. Dropping it removes the file, if it is still the one that was made.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and number of the file's inode.
    inode: (u64, u64),
}

impl SocketFile {
    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if inode(&self.path).is_ok_and(|inode| inode == self.inode) {
            // Whoever finds it left behind can replace it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    let file = std::fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}

/// Listens at this path.
///
/// # Errors
/// [`io::ErrorKind::AddrInUse`] if somebody listens there, [`io::ErrorKind::AlreadyExists`] if the file there is no
/// socket, or what the system says.
pub(super) fn bind(path: &Path, backlog: i32) -> io::Result<(UnixListener, SocketFile)> {
    clear(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::unix(path)?)?;
    socket.listen(backlog)?;
    let file = SocketFile { path: path.to_owned(), inode: inode(path)? };
    Ok((socket.into(), file))
}

/// Removes a socket that nobody listens on any more.
fn clear(path: &Path) -> io::Result<()> {
    let file = match std::fs::symlink_metadata(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !file.file_type().is_socket() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        // A full backlog is a listener too.
        Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(io::ErrorKind::AddrInUse.into()),
        Err(error) => Err(error),
    }
}
