//! A route that is replaced while its relay runs: what is in flight comes back first, and nothing goes to both.

use postrider::{ErrorKind, core::lease::Order};

use crate::support::{Broker, Place, Running, Stuck, route, until};

on_every_store!(a_replaced_route_drains_and_goes_on_with_the_new_destination);

async fn a_replaced_route_drains_and_goes_on_with_the_new_destination(place: Place) {
    let (old, new) = (Broker::new(), Broker::new());
    old.stick(Stuck::Everything);
    place.commit_labels(&["a1", "b1"]);
    let relay = Running::start(&place.log, [route("all", &old)]);
    until("both to be in flight", async || old.held() == 2).await;
    relay.replace_route(route("all", &new)).unwrap();
    place.commit_labels(&["a2", "b2"]);
    old.stick(Stuck::Nothing);
    until("the rest to arrive", async || new.arrived().len() == 2).await;
    place.commit_labels(&["a3"]);
    until("what comes later", async || new.has("a3")).await;
    assert_eq!(relay.stats().lanes(), 1, "the lane stays with its owner");
    relay.drained().await;
    let mut first = old.tried();
    first.sort();
    assert_eq!(first, ["a1", "b1"], "nothing more goes to the old one");
    assert_eq!((new.arrived_of("a"), new.tried().len()), (vec!["a2".to_owned(), "a3".to_owned()], 3), "nothing twice");
    assert_eq!((old.closed(), new.closed()), (0, 1));
}

#[tokio::test]
async fn what_the_store_knows_of_a_route_is_not_replaced() {
    let place = Place::memory();
    let broker = Broker::new();
    let relay = Running::start(&place.log, [route("all", &broker)]);
    for changed in [
        route("all", &broker).topics(["orders.*"]),
        route("all", &broker).lanes(2),
        route("all", &broker).order(Order::Total),
    ] {
        let told = relay.replace_route(changed).unwrap_err();
        assert!(told.to_string().contains("starting the relay again"), "{told}");
    }
    assert_eq!(relay.replace_route(route("other", &broker)).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(relay.replace_route(route("all", &broker).window(0)).unwrap_err().kind(), ErrorKind::Invalid);
    relay.drained().await;
}
