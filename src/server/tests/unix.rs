//! Listening on Unix sockets, and on several places at once.

use tokio::net::UnixStream;

use super::*;

fn open(path: &std::path::Path) -> Result<Door, String> {
    Door::open(&Listen::Unix(path.to_owned()), None, false).map_err(|error| error.to_string())
}

#[tokio::test]
async fn requests_are_served_at_every_door_until_the_stop_and_the_file_is_gone_then() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("proxy.sock");
    let (first, second) =
        (bind("127.0.0.1:0".parse().unwrap()).unwrap(), bind("127.0.0.1:0".parse().unwrap()).unwrap());
    let (address, other) = (first.address(), second.address());
    let doors = vec![first.into(), open(&path).unwrap(), second.into()];
    let world = World::behind(doors, address, Metrics::new(), limits(), 2);
    for _ in 0..3 {
        assert_eq!(world.connect().await.get("/").await, "/ ");
        assert_eq!(Client(TcpStream::connect(other).await.unwrap()).get("/").await, "/ ");
        let mut stream = UnixStream::connect(&path).await.unwrap();
        stream.write_all(b"GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        patiently(stream.read_to_string(&mut answer)).await.unwrap();
        assert!(answer.ends_with("/x "), "{answer:?}");
    }
    world.stop.give();
    world.ended().await;
    assert!(!path.exists());
}

#[test]
fn a_socket_left_behind_is_replaced_and_one_in_use_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("proxy.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "as a crash leaves it");
    let door = open(&path).unwrap();
    assert_eq!(door.to_string(), format!("unix:{}", path.display()));
    let expected = format!(
        "cannot listen on unix:{}: another process is listening there; stop it, or choose another path",
        path.display()
    );
    assert_eq!(open(&path).unwrap_err(), expected);
    assert!(path.exists(), "it was not stolen");
    drop(door);
    assert!(!path.exists());
}

#[test]
fn a_file_that_is_no_socket_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("precious");
    std::fs::write(&path, "x").unwrap();
    let expected = format!("cannot listen on unix:{}: there is a file that is no socket", path.display());
    assert_eq!(open(&path).unwrap_err(), expected);
    assert_eq!(std::fs::read(&path).unwrap(), b"x");
}

#[test]
fn the_file_of_a_successor_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("proxy.sock");
    let door = open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let successor = open(&path).unwrap();
    drop(door);
    assert!(path.exists());
    drop(successor);
    assert!(!path.exists());
}
