"""The ServerApp: it averages the clients' weights, and tests the model after every round."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from quickstart import task

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds."""
    config = context.run_config
    torch.manual_seed(config["seed"])
    strategy = FedAvg(
        fraction_train=config["fraction-train"],
        fraction_evaluate=config["fraction-evaluate"],
        min_available_nodes=config["num-clients"],
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(task.Net().state_dict()),
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=config["num-server-rounds"],
        evaluate_fn=evaluate,
    )
    scores = result.evaluate_metrics_serverapp
    print("accuracy by round:", [round(scores[i]["accuracy"], 4) for i in sorted(scores)])


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Test the global model on the server's pictures."""
    net = task.Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = task.test(net, *task.load_test())
    return MetricRecord({"accuracy": accuracy, "loss": loss})
