//! An in-process transport: publisher and subscriber over a bounded queue.
