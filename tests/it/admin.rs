//! The operators' listener of a real proxy: what it says of mistakes, and of the process itself.

use crate::support::World;

on_each_store! {
    async fn a_cursor_that_no_page_gave_out_is_a_mistake_of_the_call(store) {
        let world = World::new(store).await;
        let answer = world.proxy().admin("GET", "/records?cursor=zz.1.x", None).await;
        answer.assert_problem(400, "request-invalid");
        assert_eq!(world.proxy().metric("onceproxy_store_errors_total", &[]).await, 0.0);
    }
}
