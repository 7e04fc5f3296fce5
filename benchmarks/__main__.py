"""Run every benchmark: ``make bench``."""

from benchmarks import ground_floor, simulation, training

if __name__ == "__main__":
    ground_floor.main()
    simulation.main()
    training.main()
