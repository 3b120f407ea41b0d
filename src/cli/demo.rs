//! `demo`: shows in a few seconds what the proxy does. Nothing in it is faked: an upstream that counts its executions, the
//! proxy as a process of its own on the disk store, and real requests between them, all over loopback sockets.

use std::process::ExitCode;

use anyhow::{Context, Result};

mod child;
mod scenes;
mod upstream;

use self::child::{Child, Folder};
use self::scenes::{Scene, Scenes};
use self::upstream::Upstream;
use super::{fail, print};
use crate::chain::Chain;

/// Runs the demonstration; afterwards it serves until Ctrl-C, unless `once`.
pub(super) fn run(once: bool) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("cannot start: {error}")),
    };
    match runtime.block_on(demonstrate(once)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&format!("the demonstration failed: {}", Chain(error.as_ref()))),
    }
}

async fn demonstrate(once: bool) -> Result<()> {
    let upstream = Upstream::start().await.context("cannot start the upstream")?;
    let folder = Folder::make()?;
    let proxy = Child::start(&folder, upstream.address()).await?;
    print(&format!(
        "upstream  http://{}   a stand-in for a payment service; it counts its executions\n\
         proxy     http://{}   in front of it, records in {}\n\n",
        upstream.address(),
        proxy.address(),
        folder.path().display(),
    ));
    let mut scenes = Scenes::new(upstream.clone(), folder, proxy)?;
    print(&Scene::heading());
    let mut as_promised = true;
    for number in 0..scenes::COUNT {
        let scene = scenes.play(number).await?;
        as_promised &= scene.as_promised;
        print(&scene.row());
    }
    anyhow::ensure!(as_promised, "a scene did not end as promised, see `NOT AS PROMISED` above");
    if once {
        return Ok(());
    }
    print(&farewell(&scenes));
    tokio::signal::ctrl_c().await.context("cannot wait for Ctrl-C")
}

fn farewell(scenes: &Scenes) -> String {
    let proxy = scenes.proxy();
    let (address, admin) = (proxy.address(), proxy.admin_address());
    format!(
        "\nIt stays up until Ctrl-C. Try it:\n\n  \
         curl -i http://{address}/charges -H 'Content-Type: application/json' -H 'Idempotency-Key: \"my-order-1\"' -d '{{\"amount\":10}}'\n  \
         the same again: replayed;  with -d '{{\"amount\":20}}': refused\n  \
         curl -s http://{upstream}/executions\n  \
         onceproxy records list --admin {admin}\n  \
         curl -s http://{admin}/metrics | grep onceproxy_requests_total\n",
        upstream = scenes.upstream_address(),
    )
}
