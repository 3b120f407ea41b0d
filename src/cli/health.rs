//! `health`: one question to the admin listener, for a container's health check that has no other HTTP client.

use std::process::ExitCode;

use http::Method;

use super::client::Client;
use super::print;
use super::settings::AdminArgs;

const EXAMPLES: &str = "\
Examples:
  onceproxy health                         0 if /readyz says ready, else 1 and the reason
  onceproxy health --live                  0 if the process answers, and no restart is needed
  onceproxy health --admin 127.0.0.1:9090";

/// The arguments of `health`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Asks whether the process is alive instead of whether it is ready for traffic.
    #[arg(long)]
    live: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

/// Asks, and exits with 0 for yes and 1 for no or no answer.
pub(super) fn run(args: &Args) -> ExitCode {
    // Health needs no token, so none is sent.
    let client = match args.admin.base().and_then(|base| Client::new(base, None).map_err(|error| error.report())) {
        Ok(client) => client,
        Err(code) => return code,
    };
    let path = if args.live { "livez" } else { "readyz" };
    match client.call(Method::GET, &[path], &[], None) {
        Ok(body) => print(&String::from_utf8_lossy(&body)),
        Err(error) => error.report(),
    }
}
