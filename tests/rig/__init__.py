"""The test rig: stores, engines, faults, clients and the whole product as real processes."""
