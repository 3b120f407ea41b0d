//! The command line: arguments in, exit code out. What a command prints as its result goes to standard output, all else to
//! standard error.
//!
//! Exit codes: 0 success, 2 wrong usage or settings, 1 the rest. The commands for operators talk to the admin listener of a
//! running proxy; they never open the store themselves, so they work from anywhere and need no second lock on a folder.

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod check;
mod client;
pub mod demo;
mod generate;
mod health;
mod records;
mod serve;
mod settings;
mod store;

const EXIT_FAILURE: u8 = 1;
const EXIT_USAGE: u8 = 2;

const EXAMPLES: &str = "\
Examples:
  onceproxy demo --once                                  see it work, without any set-up
  onceproxy serve --upstream http://127.0.0.1:3000       one route, records in ./onceproxy-data
  onceproxy check --config onceproxy.toml                every mistake, or the effective settings
  onceproxy records list --state unknown                 what a person has to decide
  onceproxy store check --store redis://cache:6379       whether the promise holds on this store
  onceproxy health                                       for a container's health check

Environment: ONCEPROXY_CONFIG, ONCEPROXY_LISTEN, ONCEPROXY_UPSTREAM, ONCEPROXY_STORE, ONCEPROXY_ADMIN_LISTEN,
  ONCEPROXY_ADMIN_TOKEN and ONCEPROXY_LOG stand between the file and the flags.

For packages: `onceproxy generate --help` tells of shell completions and manual pages.

Exit codes: 0 success, 2 wrong usage or settings, 1 the rest.";

/// An HTTP proxy that makes side effects happen once: it claims an idempotency key, forwards the request one time, records
/// the response and replays it to duplicates.
#[derive(Debug, Parser)]
#[command(name = "onceproxy", version, after_help = EXAMPLES, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the proxy until it is told to stop (SIGTERM or SIGINT).
    Serve(serve::Args),
    /// Shows in a few seconds what the proxy does, with an upstream of its own.
    Demo(DemoArgs),
    /// Checks the settings and prints the effective ones, secrets masked.
    Check(check::Args),
    /// Lists, shows and ends records of a running proxy.
    Records(records::Args),
    /// Tells whether a store is good enough, and prepares one, before a proxy uses it.
    Store(store::Args),
    /// Asks a running proxy whether it is ready for traffic.
    Health(health::Args),
    /// Prints completions for shells, or writes the manual pages.
    #[command(hide = true)]
    Generate(generate::Args),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  onceproxy demo --once")]
struct DemoArgs {
    /// Ends after the demonstration instead of going on serving.
    #[arg(long)]
    once: bool,
}

/// Runs the program: reads the arguments, does what they say, and returns the exit code.
pub fn main() -> ExitCode {
    // TLS is used in several parts, all of which take the process's provider. It fails only if there is one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match Cli::try_parse() {
        Ok(cli) => run(cli.command),
        Err(error) => {
            // Help and version come here too, for standard output. A closed pipe is all that can go wrong.
            let _ = error.print();
            if error.use_stderr() { ExitCode::from(EXIT_USAGE) } else { ExitCode::SUCCESS }
        }
    }
}

fn run(command: Command) -> ExitCode {
    match command {
        Command::Serve(args) => serve::run(&args),
        Command::Demo(args) => demo::run(args.once),
        Command::Check(args) => check::run(&args),
        Command::Records(args) => records::run(args),
        Command::Store(args) => store::run(args),
        Command::Health(args) => health::run(&args),
        Command::Generate(args) => generate::run(&args),
    }
}

/// Prints a result. A reader that went away (`| head`) is no failure.
fn print(text: &str) -> ExitCode {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => fail(&format!("cannot print: {error}")),
        _ => ExitCode::SUCCESS,
    }
}

/// Prints something beside the result. Where nobody listens there is nobody to tell.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn fail(text: &str) -> ExitCode {
    say(&format!("error: {text}"));
    ExitCode::from(EXIT_FAILURE)
}

fn misuse(text: &str) -> ExitCode {
    say(&format!("error: {text}"));
    ExitCode::from(EXIT_USAGE)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_declarations_hold_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn without_a_command_it_helps() {
        let error = parse("onceproxy").unwrap_err();
        assert!(error.to_string().contains("Examples:"), "{error}");
        assert!(error.use_stderr());
    }

    #[test]
    fn every_command_teaches_by_an_example() {
        for command in Cli::command().get_subcommands() {
            let help = command.clone().render_help().to_string();
            let nested = command.get_subcommands().map(|nested| nested.clone().render_help().to_string());
            for help in nested.chain([help]) {
                assert!(help.contains("Example"), "{help}");
            }
        }
    }
}
