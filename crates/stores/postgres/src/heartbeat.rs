//! The heartbeat: a node says that it is alive, its leases are extended, and it learns how everything stands. One statement.
//!
//! All parts of a statement look at the database as it was when the statement began, so the roster cannot simply show what
//! the other parts write. What the node owns is therefore taken from the rows that were *locked and extended*, as they are
//! now. A lane that looked like the node's own and turned out, once its lock was had, to be somebody else's by then is left
//! out of the roster, and its driver takes that for what it is: fenced. Of everything else the roster is a hint, and whoever
//! acts on it checks again.

use postrider_core::lease::{Epoch, LaneId, LaneStanding, Node, NodeId, NodeStanding, Roster, RouteStanding};
use uuid::Uuid;

use crate::{
    db::{Alone, unsigned},
    error::Work,
    lease::{Said, names},
    route::topics,
};

/// Lanes are locked in the order of their ids, as everywhere. The node's own row tells whether it was asked to leave. Dead
/// nodes that somebody else is just forgetting are left to them: two nodes that take each other for dead must not wait for
/// each other. A replay waits while its route is paused, for both publish to the same destination.
const HEARTBEAT: &str = "
WITH owned AS MATERIALIZED (
    SELECT route, number
      FROM {lane}
     WHERE owner = $1
     ORDER BY route, number
       FOR UPDATE
), extended AS (
    UPDATE {lane} AS lane
       SET expires_at = clock_timestamp() + $4::bigint * interval '1 microsecond'
      FROM owned
     WHERE lane.route = owned.route AND lane.number = owned.number
    RETURNING lane.route, lane.number, lane.epoch
), seen AS (
    INSERT INTO {node} AS node (id, name, routes, lease_life, standstills, seen_at)
    VALUES ($1, $2, $3, $4, $5, clock_timestamp())
        ON CONFLICT (id) DO UPDATE
       SET name = $2, routes = $3, lease_life = $4, standstills = $5,
           seen_at = CASE WHEN node.seen_at > clock_timestamp() + interval '1 second' THEN node.seen_at
                          ELSE clock_timestamp() END
    RETURNING leaving
), dead AS MATERIALIZED (
    SELECT id
      FROM {node}
     WHERE id <> $1 AND seen_at + lease_life * interval '1 microsecond' <= clock_timestamp()
       FOR UPDATE SKIP LOCKED
), forgotten AS (
    DELETE FROM {node} WHERE id IN (SELECT id FROM dead)
)
SELECT $1, NULL, NULL, NULL::bigint, NULL, NULL::uuid,
       (SELECT count(*) FROM {node} WHERE seen_at > clock_timestamp() + interval '1 second')
           + (SELECT count(*) FROM {route} WHERE ahead_by IS NOT NULL), leaving
  FROM seen
 UNION ALL
SELECT id, routes, NULL, NULL::bigint, NULL, NULL::uuid, NULL::bigint, NULL::boolean
  FROM {node}
 WHERE id <> $1 AND seen_at + lease_life * interval '1 microsecond' > clock_timestamp()
 UNION ALL
SELECT NULL, NULL, lane.route, lane.number, coalesce(route.replay_of, route.name),
       CASE WHEN extended.route IS NOT NULL THEN $1
            WHEN lane.expires_at > clock_timestamp() THEN lane.owner END,
       coalesce(extended.epoch, lane.epoch),
       route.paused_by IS NOT NULL OR served.paused_by IS NOT NULL
  FROM {lane} AS lane
  JOIN {route} AS route ON route.name = lane.route
  LEFT JOIN {route} AS served ON served.name = route.replay_of
  LEFT JOIN extended ON extended.route = lane.route AND extended.number = lane.number
 WHERE lane.owner IS DISTINCT FROM $1 OR extended.route IS NOT NULL
 UNION ALL
SELECT NULL, topics, name, NULL::bigint, NULL, NULL::uuid, NULL::bigint, NULL::boolean
  FROM {route}
 WHERE replay_of IS NULL";

/// With the roster comes whether the server's clock has gone back and something lies ahead, see [`crate::clock`]: until that is
/// noticed, the node's own `seen_at` stays where it is. If the future is dropped, the leases are extended or not.
pub(crate) async fn heartbeat(on: &Alone<'_>, node: &Node) -> Work<(Roster, bool)> {
    let Said { routes, life, standstills } = Said::of(node);
    let (mut roster, mut is_ahead) = (Roster::default(), false);
    roster.nodes.push(NodeStanding { id: node.id, routes: node.routes.clone() });
    for row in on.query(HEARTBEAT, &[&node.id.0, &node.name, &routes, &life, &standstills]).await? {
        if let Some(id) = row.try_get::<_, Option<Uuid>>(0)? {
            if NodeId(id) == node.id {
                roster.leave = row.try_get(7)?;
                is_ahead = row.try_get::<_, i64>(6)? > 0;
                continue;
            }
            roster.nodes.push(NodeStanding { id: NodeId(id), routes: names(row.try_get(1)?)? });
            continue;
        }
        let route = row.try_get::<_, &str>(2)?.into();
        let Some(number) = row.try_get::<_, Option<i64>>(3)? else {
            roster.routes.push(RouteStanding { route, topics: topics(row.try_get(1)?)? });
            continue;
        };
        roster.lanes.push(LaneStanding {
            lane: LaneId { route, number: unsigned(number) },
            served_by: row.try_get::<_, &str>(4)?.into(),
            owner: row.try_get::<_, Option<Uuid>>(5)?.map(NodeId),
            epoch: Epoch(row.try_get::<_, i64>(6)?.cast_unsigned()),
            paused: row.try_get(7)?,
        });
    }
    roster.nodes.sort_by_key(|node| node.id);
    roster.routes.sort_by(|one, other| one.route.cmp(&other.route));
    roster.lanes.sort_by(|one, other| one.lane.cmp(&other.lane));
    Ok((roster, is_ahead))
}
