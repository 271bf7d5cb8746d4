//! Tests that measure what a program gets of the device's time, or how soon something happens.

mod compute;
mod copies;
mod daemon;
mod grids;
mod in_stream;
mod live;
mod near_the_limit;
mod odd_launches;
mod reconcile;
