//! `generate`: completions for shells and the manual pages, from the same declarations that arguments are parsed by.
//!
//! Hidden from the help, since it is for whoever packages the binary: `make dist` puts what it prints into the archive.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use super::{Cli, fail, print};

const EXAMPLES: &str = "\
Examples:
  onceproxy generate completions bash > /etc/bash_completion.d/onceproxy
  onceproxy generate completions zsh > /usr/local/share/zsh/site-functions/_onceproxy
  onceproxy generate completions fish > ~/.config/fish/completions/onceproxy.fish
  onceproxy generate man /usr/local/share/man/man1";

/// The arguments of `generate`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(super) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Prints the completions for a shell.
    #[command(after_help = "Example:\n  source <(onceproxy generate completions bash)")]
    Completions {
        /// The shell that will read them.
        shell: Shell,
    },
    /// Writes the manual pages, one for each command, into a folder.
    #[command(after_help = "Example:\n  onceproxy generate man /usr/local/share/man/man1")]
    Man {
        /// An existing folder.
        folder: PathBuf,
    },
}

/// Prints or writes what was asked for.
pub(super) fn run(args: &Args) -> ExitCode {
    match &args.what {
        What::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "onceproxy", &mut text);
            print(&String::from_utf8_lossy(&text))
        }
        What::Man { folder } => match clap_mangen::generate_to(Cli::command(), folder) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&format!("cannot write manual pages into {}: {error}", folder.display())),
        },
    }
}
