//! Tests that measure what a program gets of the device's time, or how soon something happens.

mod ahead;
mod compute;
mod copies;
mod daemon;
mod gangs;
mod grids;
mod handover;
mod in_stream;
mod kills;
mod live;
mod near_the_limit;
mod observer;
mod odd_launches;
mod reconcile;
mod varying;
mod while_held;
