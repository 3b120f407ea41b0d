//! Several futures of one kind at once, so that one that waits for a server which hangs does not hold up the others.

use std::pin::Pin;
use std::task::Poll;

/// Runs all of these to their ends, and returns what they returned in their order.
pub(super) async fn all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut ended: Vec<Option<F::Output>> = running.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, end) in running.iter_mut().zip(&mut ended) {
            if end.is_none()
                && let Poll::Ready(output) = future.as_mut().poll(context)
            {
                *end = Some(output);
            }
        }
        if ended.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    ended.into_iter().flatten().collect()
}
