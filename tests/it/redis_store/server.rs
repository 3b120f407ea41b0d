//! What a test does to a server beyond asking it: count, signal, stop and start again.

use std::process::Command;

use super::*;

impl RedisServer {
    /// How often a command was called since the counters were reset, by clients and by scripts.
    pub(super) fn calls_of(&self, command: &str) -> u64 {
        let stats = self.command(&["INFO", "commandstats"]);
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        line.and_then(|line| line.split(',').next()).map_or(0, |calls| calls.parse().unwrap())
    }

    /// Sends the process a signal.
    pub(super) fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Stops it hard.
    pub(super) fn stop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again on the same port, with nothing in it.
    pub(super) fn restart(&mut self) {
        self.child = redis_server::spawn(self.dir.path(), self.port(), &[]).expect("the port is still free");
    }
}
