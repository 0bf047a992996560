"""What the DAGs beside this folder are made of. Needs Airflow 3 and nothing of Shardmill."""
