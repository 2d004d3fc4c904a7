//! The simulator: the real engine on a simulated store and broker, from one seed.
