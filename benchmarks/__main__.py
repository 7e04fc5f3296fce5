"""Run every benchmark: ``make bench``."""

from benchmarks import ground_floor, simulation

if __name__ == "__main__":
    ground_floor.main()
    simulation.main()
